"""Speed of polyad against its peers: ``make bench`` prints ratios measured in one run."""
