"""A training on hosts that are reached by ssh, without a scheduler."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.errors import UserError, quote
from t2t_jax.launch.job import (
    GpuHosts,
    LaunchedTraining,
    TrainJob,
    exclusion,
    fewest_hosts,
    from_template,
)

_HOST = re.compile(r"[^\s:@]+(@[^\s:@]+)?")


@dataclass(frozen=True)
class Ssh(GpuHosts, TrainJob):
    """Write a script that trains on hosts that see the files of this one, and start it.

    Each --option is one of ssh, such as Port=2222.
    """

    hosts: tuple[str, ...] = ()
    """Names of the hosts, or USER@NAME, by which they also find each other."""
    min_hosts: int | None = None
    """Number of hosts with which a training goes on without those that hung; None is all."""

    file: ClassVar[str] = "ssh.sh"
    client: ClassVar[str] = "ssh"
    shares_files: ClassVar[bool] = True
    in_foreground: ClassVar[bool] = True

    @property
    def _fewest(self) -> int:
        return fewest_hosts(self.min_hosts, len(self.hosts))

    def check(self, training: LaunchedTraining) -> None:
        """Refuse names of hosts, or a number of them that does not fit the mesh.

        Raises:
          UserError: a value is refused.
        """
        super().check(training)
        if not self.hosts:
            raise UserError("there is no host to train on; name some, as in --hosts gpu1 gpu2")
        [(name, count), *_] = Counter(self.hosts).most_common(1)
        if count > 1:
            raise UserError(f"--hosts names {name} {count} times; name each host once")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise UserError(
                    f"--hosts {quote(host)} is not NAME or USER@NAME; a port is --option Port=2222"
                )
        self.check_hosts(training, range(self._fewest, len(self.hosts) + 1))

    def text(self, training: LaunchedTraining, path: Path) -> str:
        """Return the script, which is called on the hosts, too."""
        train = self.train_command(training)
        options = [word for option in self.options() for word in ("-o", option)]
        return self.filled(
            training,
            hosts=shlex.join(self.hosts),
            path=shlex.quote(str(path.absolute())),
            script=self.script(train, host='"$1"', hosts='"$2"', first='"$3"'),
            options=shlex.join(options),
            together=from_template("together.sh"),
            restarts=self.restarts(training, path),
            exclusion=exclusion("ssh_exclusion.sh", training, self._fewest),
        )
