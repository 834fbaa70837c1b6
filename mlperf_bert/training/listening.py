"""Where the chief listens: on its own address in the cluster, not on every interface.

The name of the chief's host may have several addresses (IPv4 and IPv6, several networks): the chief
listens on those that this machine has. Sometimes the other processes can reach none of these: with
a Kubernetes service or NAT the address belongs to another machine, and Debian resolves its own name
to 127.0.1.1. Then the chief listens on all interfaces, and prints a line about it.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import sys

from mlperf_bert.training.config import Cluster

# Not an address of this machine, or a family that its kernel does not support.
_FOREIGN = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def listeners(cluster: Cluster) -> list[socket.socket]:
    """Sockets that listen on the chief's port.

    Raises:
      OSError: the chief's host has no address, or its port is taken.
    """
    host, port = cluster.host_and_port(0)
    try:
        own = _listen_on(_addresses(host, port), port)
        only_loopback = all(_is_loopback(listener.getsockname()) for listener in own)
        if own and not (only_loopback and _others_are_elsewhere(cluster)):
            return own
        for listener in own:
            listener.close()
        print(
            f"run_pretraining.py: {host}, the chief's host, is not an address of this machine that "
            f"other hosts could reach; listening on port {port} of all interfaces",
            file=sys.stderr,
        )
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return [socket.create_server(("", port), family=family, dualstack_ipv6=dual)]
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(
            f"cannot listen on port {port} ({reason}); end the program that uses "
            "it, or give the chief another port"
        ) from error


def _addresses(host: str, port: int) -> list[tuple]:
    """Family and address of each address of the host; empty if its name is unknown."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):  # a name with an empty or overlong part
        return []
    return sorted({(family, address) for family, _, _, _, address in found})


def _listen_on(addresses: list[tuple], port: int) -> list[socket.socket]:
    """Listens on the addresses that belong to this machine."""
    with contextlib.ExitStack() as opened:
        found = []
        for family, address in addresses:
            try:
                listener = socket.create_server(address, family=family)
            except OSError as error:
                if error.errno in _FOREIGN:
                    continue
                raise
            found.append(opened.enter_context(listener))
        opened.pop_all()
        return found


def _others_are_elsewhere(cluster: Cluster) -> bool:
    """Whether a process has an address that is not loopback, or a name that is unknown here."""
    for index in range(len(cluster.addresses)):
        found = _addresses(*cluster.host_and_port(index))
        if not found or not all(_is_loopback(address) for _, address in found):
            return True
    return False


def _is_loopback(address: tuple) -> bool:
    return ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
