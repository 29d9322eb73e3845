"""The SQL language of filters and actions: text to tokens, tokens to a tree, the tree evaluated on a message."""
