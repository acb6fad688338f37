"""Several broker groups as one BrokerPort for a gateway process."""
