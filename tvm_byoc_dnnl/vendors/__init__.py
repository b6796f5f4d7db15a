"""What a vendor registers, and the routes by which its regions are built."""
