"""What every room shares: errors, the Arrow schemas in which rooms meet, sizes and spans of time.

It imports nothing else of headpond.
"""
