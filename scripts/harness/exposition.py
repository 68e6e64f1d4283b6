def read(text, source):
    import re
    g=lambda n: (lambda m: float(m[1]) if m else None)(re.search(rf"^{n} (\S+)",text,re.M))
    return {"running": g("llamacpp:requests_processing"), "waiting": g("llamacpp:requests_deferred")}
