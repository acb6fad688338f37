"""The RocketMQ Remoting protocol: codes, headers, codec and the server side."""
