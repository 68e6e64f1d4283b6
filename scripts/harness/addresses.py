"""What of an address may be shown."""

from urllib.parse import urlsplit


def plain_url(url: str) -> str:
    """Return a URL without user name, password, query and fragment: what of it may be shown.

    >>> plain_url("https://me:key@host:8/v1?api-key=abc")
    'https://host:8/v1'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(an address that cannot be read)"
    if not parts.netloc:  # none that can be asked: what stands before an @ may be a password
        return url.partition("?")[0].partition("#")[0].rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
