"""How many samples the reference needs to converge: the reference convergence points (RCP).

Source: mlperf-logging, rcp_checker/training_2.1.0 to 5.0.0 (equal for BERT).
"""

from collections.abc import Mapping
from types import MappingProxyType

MEAN_SAMPLES_TO_CONVERGE: Mapping[int, float] = MappingProxyType(
    {
        256: 2_549_219.6,
        448: 2_414_421.3,
        1536: 2_776_278.2,
        3072: 2_764_498.7,
        4096: 2_843_989.3,
        4608: 2_798_080.0,
        6144: 3_319_125.3,
        6912: 3_601_920.0,
        8192: 4_186_112.0,
        8704: 4_273_706.7,
        12288: 4_465_066.7,
        13056: 4_645_333.3,
        16384: 5_505_422.2,
    }
)
"""Global batch size -> mean samples to the target accuracy."""
