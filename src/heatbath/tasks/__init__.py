"""What is trained: networks and everything that is known of them."""
