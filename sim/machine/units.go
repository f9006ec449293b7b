// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// unitDir is systemd's directory for units that an administrator installs.
const unitDir = "/etc/systemd/system"

// InstallUnits copies the systemd units in the directory dir to /etc/systemd below the directory root. It enables the
// timer, as "systemctl enable" does. systemd does not run on a Machine, so no unit starts: see [Machine.Watch].
func InstallUnits(root, dir, timer string) error {
	wants := filepath.Join(root, unitDir, "timers.target.wants")
	return errors.Join(
		os.CopyFS(filepath.Join(root, filepath.Dir(unitDir)), os.DirFS(dir)),
		os.MkdirAll(wants, 0o755),
		os.Symlink(filepath.Join(unitDir, timer), filepath.Join(wants, timer)))
}

// Watch starts the path unit NAME.path of the machine, as "systemctl start" does. It also starts the path units that
// the key Wants= of this unit lists. The key PathExists= names a file. While this file exists, Watch runs the commands
// of NAME.service again and again. The argument "logs" is the directory in which Watch appends the commands' output to
// the file MACHINE-NAME.service.log.
//
// Watch returns at once. The path units stay active until the machine goes off or reboots, or until the caller calls
// stop. The function "stop" waits for the end of a running command.
func (m *Machine) Watch(logs, unit string) (stop func(), err error) {
	path, err := m.readUnit(unit)
	if err != nil {
		return nil, err
	}
	service := strings.TrimSuffix(unit, ".path") + ".service"
	does, err := m.readUnit(service)
	if err != nil {
		return nil, err
	}
	if len(path["PathExists"]) != 1 || len(does["ExecStart"]) != 1 {
		return nil, fmt.Errorf("%s: want one PathExists= in %s, and one ExecStart= in %s", m.Name, unit, service)
	}
	log, err := os.OpenFile(filepath.Join(logs, m.Name+"-"+service+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(m.bootCtx)
	mark, commands := m.File(path["PathExists"][0]), append(does["ExecStartPre"], does["ExecStart"]...)
	var watching sync.WaitGroup
	watch := func() {
		defer log.Close()
		for ctx.Err() == nil {
			if _, err := os.Stat(mark); err == nil {
				m.runCommands(log, commands)
			}
			select {
			case <-ctx.Done():
			case <-time.After(pollInterval):
			}
		}
	}
	watching.Add(1)
	m.running.Go(func() { defer watching.Done(); watch() })
	stops := []func(){func() { cancel(); watching.Wait() }}
	for _, wanted := range strings.Fields(strings.Join(path["Wants"], " ")) {
		more, e := m.Watch(logs, wanted)
		if err = errors.Join(err, e); e == nil {
			stops = append(stops, more)
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}, err
}

// pollInterval is the time between two looks of Watch for the file in PathExists=.
const pollInterval = 10 * time.Millisecond

// runCommands runs the commands of a service, until a command without the prefix "-" fails.
func (m *Machine) runCommands(log io.Writer, commands []string) {
	for _, line := range commands {
		command := strings.TrimLeft(line, "-+")
		words := strings.Fields(command)
		c := m.Command(context.Background(), words[0], words[1:]...)
		c.Stdout, c.Stderr = log, log
		began := time.Now()
		err := c.Run()
		fmt.Fprintf(log, "machine: %s %s: began %s, took %v: %v\n", m.Name, command, began.Format(time.RFC3339Nano),
			time.Since(began).Round(time.Millisecond), err)
		if prefix := line[:len(line)-len(command)]; err != nil && !strings.Contains(prefix, "-") {
			return
		}
	}
}

// readUnit reads a unit of the machine. For each key, it returns the values in the order of the lines.
func (m *Machine) readUnit(name string) (map[string][]string, error) {
	text, err := os.ReadFile(m.File(filepath.Join(unitDir, name)))
	if err != nil {
		return nil, err
	}
	values := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") {
			values[key] = append(values[key], value)
		}
	}
	return values, nil
}
