"""MCP server: tools with bounded answers about the profiles below given directories.

Only `server` imports the MCP library; everything else is plain functions.
"""
