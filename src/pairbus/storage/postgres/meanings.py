"""The settings that our statements rely on. A role, a database or a server may have others, so each connection begins with these.

Left alone is what is the administrator's to say: ``search_path`` (the schema of our tables), ``default_transaction_read_only`` (this server takes no
writes, and libpq looks for another one), table spaces, and what costs time and changes no meaning.
"""

from __future__ import annotations

from typing import Final

MEANINGS: Final = b"""
set client_min_messages = warning;  -- first: a warning is bad news to us, and what is below it is none
set statement_timeout = 0;
set standard_conforming_strings = on;
set client_encoding = 'UTF8';
set bytea_output = hex;
set quote_all_identifiers = off;  -- names of tables are shown
set datestyle = 'ISO';  -- the instant of the server's start is compared as text
set timezone = 'UTC';
set default_transaction_isolation = 'read committed';  -- a statement that waited for a row sees what was committed meanwhile
set default_transaction_deferrable = off;
"""
