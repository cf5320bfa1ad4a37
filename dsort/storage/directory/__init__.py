"""storage/directory"""
