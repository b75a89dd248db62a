"""vidpipe"""
