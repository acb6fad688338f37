"""The one IO shell: TCP on asyncio transports."""
