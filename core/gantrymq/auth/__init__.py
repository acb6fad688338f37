"""Who somebody is and what he may do, for every door: users, policies, one decision. No socket, no protocol."""
