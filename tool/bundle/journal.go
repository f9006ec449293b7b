// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

var units = []string{"cni-gc.service", "cni-gc.timer", "cni-warm.service", "cni-warm.path",
	"cni-release.service", "cni-release.path", "cni-advertise.service", "cni-advertise.timer", "cni-links.service",
	"cni-metrics.service", "cni-metrics.timer", "cni-doctor.service", "cni-doctor.timer"}

// speakers are the programs whose lines about our units may leave the node. With a drop-in, an operator can run other
// programs in our units. The lines of these programs stay on the node.
var speakers = []string{"systemd", cli.Program, "cni-tool", "cni-ipvlan-vpc-k8s-links"}

// The maximum numbers of lines and bytes that the bundle reads from the journal.
const (
	journalLines = 3000
	journalBytes = 16 << 20
)

func (g *gathering) readJournal(ctx context.Context) (finish, error) {
	args := []string{"--no-pager", "--output=json", "--since=-3d", "--lines=" + strconv.Itoa(journalLines),
		"--output-fields=MESSAGE,PRIORITY,SYSLOG_IDENTIFIER,_SYSTEMD_UNIT,UNIT"}
	for _, u := range units {
		args = append(args, "--unit="+u)
	}
	out, err := programOutput(ctx, journalBytes, "journalctl", args...)
	if err != nil {
		return nil, err
	}
	return func() (any, error) { return &list[Entry]{items: g.allow.keptEntries(out), keepsEnd: true}, nil }, nil
}

// keptEntries returns the lines of journalctl's output that may leave the node.
func (w *allowance) keptEntries(text []byte) (all []Entry) {
	for line := range bytes.Lines(text) {
		var e struct {
			Time    string `json:"__REALTIME_TIMESTAMP"`
			Message string `json:"MESSAGE"`
			Level   string `json:"PRIORITY"`
			Program string `json:"SYSLOG_IDENTIFIER"`
			Of      string `json:"_SYSTEMD_UNIT"`
			About   string `json:"UNIT"`
		}
		if json.Unmarshal(line, &e) != nil || !slices.Contains(speakers, e.Program) {
			continue
		}
		unit := e.Of
		if e.About != "" {
			unit = e.About // a line of systemd about the unit
		}
		micro, err := strconv.ParseInt(e.Time, 10, 64)
		if err != nil || !slices.Contains(units, unit) {
			continue
		}
		level, err := strconv.Atoi(e.Level)
		if err != nil || level < 0 || level > 7 {
			level = 6
		}
		all = append(all, Entry{time.UnixMicro(micro).UTC(), unit, e.Program, strconv.Itoa(level),
			w.keptText(e.Message)})
	}
	return all
}

// programOutput runs a program, and returns its output. If the output is too long, programOutput returns the first
// bytes, up to the limit, and kills the program.
func programOutput(ctx context.Context, limit int64, program string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, program, args...)
	c.WaitDelay = time.Second
	pipe, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(pipe, limit))
	if int64(len(text)) == limit {
		_ = c.Process.Kill() // the program may have more to write
	}
	failed := c.Wait()
	if len(text) == 0 && failed != nil {
		return nil, fmt.Errorf("%s: %w", program, failed)
	}
	return text, err
}

// endOfLog reads the last lines of a lease log, from its previous file and its current file.
func endOfLog(file string) (lines []registry.Line, err error) {
	const last = 4 << 20
	for _, name := range []string{file + ".1", file} {
		text, e := fileEnd(name, last)
		if e != nil && (name == file || !errors.Is(e, os.ErrNotExist)) {
			err = e
			continue
		}
		in := bufio.NewScanner(bytes.NewReader(text))
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			var line registry.Line
			if json.Unmarshal(in.Bytes(), &line) == nil && !line.Time.IsZero() {
				lines = append(lines, line)
			}
		}
	}
	if len(lines) > 0 {
		err = nil
	}
	return lines, err
}

// fileEnd returns the last bytes of a file, up to the limit.
func fileEnd(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	from := max(0, info.Size()-limit)
	return io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
}

// foreignPrograms are programs of other projects. The bundle has the versions of these programs.
var foreignPrograms = []string{"containerd", "crio", "kubelet", "runc", "nft", "systemctl"}

// versionPattern matches the part of an answer to --version that may leave the node.
var versionPattern = lazyRegexp(`\bv?\d{1,4}(\.\d{1,5}){1,3}((-|~|\+)[a-z]{1,5}[.\d]{0,6})?`)

func (g *gathering) readVersions(ctx context.Context) (finish, error) {
	all := map[string]string{"this tool": release.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		all["Linux"] = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	for _, typ := range conf.Types {
		if info, err := buildinfo.ReadFile(filepath.Join(g.binDir, typ)); err == nil {
			all[typ] = info.Main.Version
		}
	}
	for _, p := range foreignPrograms {
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		text, err := programOutput(one, 4<<10, p, "--version")
		cancel()
		if v := versionPattern().Find(text); err == nil && v != nil {
			all[p] = string(v)
		}
	}
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		all["system"] = systemOf(string(text))
	}
	return func() (any, error) { return all, nil }, nil
}

// systemOf returns the name and the version of the system from the text of os-release(5).
func systemOf(text string) string {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if value = strings.Trim(value, `"'`); systemWord().MatchString(value) {
			values[name] = value
		}
	}
	return strings.TrimSpace(values["ID"] + " " + values["VERSION_ID"])
}

var systemWord = lazyRegexp(`^[a-z_.-]{0,20}[\d.]{0,16}$`)
