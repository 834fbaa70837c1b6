"""What runs mean: compare, expect, watch, standing; usable on anybody's MLPerf BERT logs."""
