// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// environmentFile is the file with variables that the units of the tool read (EnvironmentFile=).
const environmentFile = "/etc/cni-ipvlan-vpc-k8s.env"

// runtimeNames are the names that /proc shows for the programs that execute CNI plugins. k3s also executes a
// containerd.
var runtimeNames = []string{"containerd", "crio", "cri-dockerd"}

// A process is a container runtime of this node.
type process struct{ program, dir string } // dir is its directory in /proc

func (p process) String() string { return p.program + ", process " + filepath.Base(p.dir) }

// runtimeProcesses returns the processes that execute CNI plugins of this node. Runtimes in other PID namespaces run in
// containers, and do not execute these plugins.
func runtimeProcesses() ([]process, error) {
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	var found []process
	for _, name := range names {
		comm, err := os.ReadFile(name)
		p := process{strings.TrimSpace(string(comm)), filepath.Dir(name)}
		if err != nil || !slices.Contains(runtimeNames, p.program) {
			continue // the process has ended, or is no runtime
		}
		if theirs, err := os.Readlink(filepath.Join(p.dir, "ns/pid")); err == nil && theirs == ours {
			found = append(found, p)
		}
	}
	return found, nil
}

func runtimePlaces() ([]place, error) {
	all, err := runtimeProcesses()
	var found []place
	for _, p := range all {
		text, err := os.ReadFile(filepath.Join(p.dir, "environ"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, place{p.String(), environmentOf(strings.Split(string(text), "\x00")), severe,
			"ADDs that need EC2 fail",
			"give this runtime the variables of that process, by a drop-in of the runtime's unit " +
				"(docs/configuration.md, Environment)"})
	}
	return found, err
}

// environmentOf makes an environment from assignments of the form NAME=VALUE. If a name has several assignments, the
// last one counts, as in systemd.
func environmentOf(assignments []string) aws.Environment {
	values := map[string]string{}
	for _, a := range assignments {
		name, value, _ := strings.Cut(a, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

// unitPlaces returns the units of the tool that ask EC2. It leaves out units that systemd has not loaded. If systemd
// does not run here, it returns nil.
func (p *Node) unitPlaces(ctx context.Context) []place {
	if !p.hasSystemd() {
		return nil
	}
	common, _ := exec.CommandContext(ctx, "systemctl", "show-environment").Output()
	var found []place
	for _, unit := range []string{"cni-gc.service", "cni-warm.service", "cni-release.service"} {
		out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=LoadState,Environment,EnvironmentFiles",
			unit).Output()
		if err != nil || !bytes.Contains(out, []byte("LoadState=loaded\n")) {
			continue // checkTimers reports a missing unit
		}
		env := environmentOf(append(fileVariables(string(common)), unitVariables(string(out), os.ReadFile)...))
		found = append(found, place{unit, env, severe, "this unit neither releases addresses nor gets them in advance",
			"write the variables of the runtime to " + environmentFile + ", which the unit reads"})
	}
	return found
}

// unitVariables returns the variables of a unit. The argument "shown" is the output of systemctl show. The variables of
// environment files come last, because they override the unit's other variables (systemd.exec(5), EnvironmentFile=).
func unitVariables(shown string, read func(string) ([]byte, error)) (all []string) {
	var files []string
	for line := range strings.Lines(shown) {
		property, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch property {
		case "Environment":
			all = append(all, quotedWords(value)...)
		case "EnvironmentFiles":
			file, _, _ := strings.Cut(value, " (ignore_errors=")
			files = append(files, file)
		}
	}
	for _, file := range files {
		text, err := read(file)
		if err != nil {
			continue // a unit that needs the file does not start, and checkTimers reports the unit
		}
		all = append(all, fileVariables(string(text))...)
	}
	return all
}

// quotedWords splits a line at its spaces, but not between quotation marks.
func quotedWords(line string) []string {
	quoted := false
	return strings.FieldsFunc(strings.ReplaceAll(line, `\"`, "'"), func(r rune) bool {
		if r == '"' {
			quoted = !quoted
			return true
		}
		return r == ' ' && !quoted
	})
}

// fileVariables returns the variables of an environment file. It does not support values of several lines, because no
// variable that we read has such a value.
func fileVariables(text string) (all []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		value = strings.TrimSpace(strings.TrimPrefix(value, "$")) // systemctl writes $'...' for odd characters
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		all = append(all, strings.TrimSpace(name)+"="+value)
	}
	return all
}
