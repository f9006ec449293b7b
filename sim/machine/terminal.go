// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package machine

import (
	"errors"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether a file is a terminal, as isatty(3) does. It does not check for a character device, because
// a virtio serial port of a VM is a character device, too.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Attach runs a command with the standard input, output and error of this process, and returns the command's exit
// status. runCommand must run the command and wait for its end. runCommand chooses where the command runs, for example
// in a namespace.
func Attach(c *exec.Cmd, runCommand func(*exec.Cmd) error) (status int, err error) {
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = runCommand(c)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}
