"""keymap"""
