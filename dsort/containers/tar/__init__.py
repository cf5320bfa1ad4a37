"""containers/tar"""
