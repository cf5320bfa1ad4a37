"""order"""
