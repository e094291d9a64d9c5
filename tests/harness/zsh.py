# SPDX-License-Identifier: GPL-2.0-or-later
"""An interactive zsh, for testing its completions."""
import os
import pty
import signal

import machine

# Redirects the results of completion functions to a file.
SETUP = r"""
unset zle_bracketed_paste; PROMPT= RPROMPT= PS2=
autoload -Uz compinit; compinit -u -d {directory}/dump
source {directory}/_ebbctl
compadd() {{
	typeset -a hits
	if [[ ${{@[1,(i)(-|--)]}} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return $?; fi
	builtin compadd -A hits "$@"
	(( $#hits )) && print -rl -- $hits >> {directory}/hits
	return $(( ! $#hits ))
}}
# Only now is the terminal the line editor's: what is sent before, ^U included, is not.
zle-line-init() {{ print ready > {directory}/done }}
zle -N zle-line-init
"""


class Zsh:
    """@script is a completion for @program; @directory is for temporary files."""

    def __init__(self, script, directory):
        self.directory = directory
        (directory / "_ebbctl").write_text(script)
        (directory / "setup").write_text(SETUP.format(directory=directory))
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.environ.update(HOME=str(directory), TERM="dumb", LC_ALL="C.UTF-8",
                              PATH=f"{machine.BIN}:{os.environ['PATH']}")
            os.execlp("zsh", "zsh", "-f", "-i")
        os.set_blocking(self.fd, False)
        self.send(f" source {directory}/setup\n")

    def read(self):
        """Discards the terminal's output, so that zsh never blocks; returns whether zsh is done."""
        try:
            os.read(self.fd, 65536)
        except (BlockingIOError, OSError):
            pass
        return (self.directory / "done").exists()

    def send(self, text):
        os.write(self.fd, text.encode())
        machine.wait_for(self.read, 20, f"zsh: {text!r}: an end of it")
        (self.directory / "done").unlink()

    def complete(self, line):
        """Returns the completions of @line, with Tab at its end."""
        hits = self.directory / "hits"
        hits.unlink(missing_ok=True)
        # ^U discards the line.
        self.send(f"{line}\t\x15\n")
        return hits.read_text().split("\n")[:-1] if hits.exists() else []

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)
