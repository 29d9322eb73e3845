"""The SQL language of filters and actions: text to tokens, tokens to a tree, and its evaluation."""
