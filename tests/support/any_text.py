"""Texts that come from outside, the worst among them."""

from hypothesis import strategies as st

HOSTILE = (
    "\x1b[2J\x1b[31mred",  # clears the screen
    "\x1b]0;title\x07",  # sets the window's title
    "\x1b]52;c;ZXZpbA==\x07",  # writes into the clipboard
    "\x9b31m",  # an escape sequence in one C1 character
    "over\rwritten",
    "\u202eesrever\u2066",
    "NUL \x00 and \ud800 and \udcff",
    "<script>alert(1)</script>",
    "</td>{{ 7 * 7 }}{% raw %}",
    "[bold red]markup[/] %s %(x)s {0}",
    "\ufeff\u2028\u2029\ufff9",
    "long " * 4_000,
)

characters = st.integers(0, 0x10FFFF).map(chr)
any_text = st.one_of(
    st.text(characters, max_size=60),
    st.sampled_from(HOSTILE),
    st.builds(lambda one, other: one + other, st.sampled_from(HOSTILE[:-1]), st.text(characters, max_size=10)),
)
