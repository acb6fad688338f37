"""Registration at nameservers, and routes asked of them."""
