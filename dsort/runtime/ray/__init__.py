"""runtime/ray"""
