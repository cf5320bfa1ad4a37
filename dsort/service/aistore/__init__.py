"""service/aistore"""
