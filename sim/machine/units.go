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

// system is where units are.
const system = "/etc/systemd/system"

// InstallUnits copies units of systemd below a root directory, and enables one, as systemctl enable does with a timer.
// Nothing runs them: see [Machine.Watch].
func InstallUnits(root, units, timer string) error {
	wants := filepath.Join(root, system, "timers.target.wants")
	return errors.Join(
		os.CopyFS(filepath.Join(root, filepath.Dir(system)), os.DirFS(units)),
		os.MkdirAll(wants, 0o755),
		os.Symlink(filepath.Join(system, timer), filepath.Join(wants, timer)))
}

// Watch does what systemctl start does with a path unit that is installed on the machine, and with the path units that
// it wants: while the file of PathExists= is there, it runs the commands of the service of the same name, one service
// run after the other. Of a service it heeds the commands alone. Their output is appended to a file for each unit,
// LOGS/MACHINE-SERVICE.log. It ends with this boot, or by stop, which waits until no command runs.
func (m *Machine) Watch(logs, unit string) (stop func(), err error) {
	path, err := m.unit(unit)
	if err != nil {
		return nil, err
	}
	service := strings.TrimSuffix(unit, ".path") + ".service"
	does, err := m.unit(service)
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
	ctx, cancel := context.WithCancel(m.ctx)
	mark, commands := m.File(path["PathExists"][0]), append(does["ExecStartPre"], does["ExecStart"]...)
	var watching sync.WaitGroup
	watch := func() {
		defer log.Close()
		for ctx.Err() == nil {
			if _, err := os.Stat(mark); err == nil {
				m.serve(log, commands)
			}
			select {
			case <-ctx.Done():
			case <-time.After(look):
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

// look is how often a watch looks. systemd is told by the kernel.
const look = 10 * time.Millisecond

// serve runs the commands of a service. A prefix of a command says how systemd runs it: "-" that it may fail. If
// another one fails, the commands behind it do not run.
func (m *Machine) serve(log io.Writer, commands []string) {
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

// unit reads a unit of the machine: the values of each key, in their order.
func (m *Machine) unit(name string) (map[string][]string, error) {
	text, err := os.ReadFile(m.File(filepath.Join(system, name)))
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
