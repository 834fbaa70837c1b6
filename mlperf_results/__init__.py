"""What runs mean: compare, expect, standing; usable on anybody's MLPerf BERT logs."""
