"""Settings as a whole, as the command line shows and checks them."""
