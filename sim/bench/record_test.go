// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/bench/image"
)

// The test binary is a plugin where it is told a directory.
func TestMain(m *testing.M) {
	dir := os.Getenv("BENCH_TEST")
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := plugin(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// plugin writes what it reads to a file, asks for an address of lo, and prints a result.
func plugin(dir string) error {
	b, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), b, 0o600); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "file")); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "missing")); !os.IsNotExist(err) {
		return fmt.Errorf("missing: %w", err)
	}
	fmt.Print("{}")
	return nil
}

// TestReplay records a plugin, and makes its calls again by both programs: with the same effect, and with an error where
// the kernel's answer is another.
func TestReplay(t *testing.T) {
	dir := t.TempDir()
	r := &recorder{executor: executor{env: []string{"BENCH_TEST=" + dir}}}
	out, err := r.ExecPlugin(context.Background(), os.Args[0], []byte("what it reads"), os.Environ())
	if err != nil || string(out) != "{}" {
		t.Fatalf("printed %q: %v", out, err)
	}
	prefix := filepath.Join(t.TempDir(), "recorded")
	if err := r.recording.write(prefix + "-ADD"); err != nil {
		t.Fatal(err)
	}
	replay := filepath.Join(t.TempDir(), "replay")
	if out, err := exec.Command("go", "build", "-o", replay, "./replay").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	programs := []string{replay}
	if runtime.GOARCH == "amd64" {
		programs = append(programs, prefix+"-ADD")
	}
	for _, p := range programs {
		t.Run(filepath.Base(p), func(t *testing.T) { again(t, p, prefix, dir) })
	}
}

func again(t *testing.T, program, prefix, dir string) {
	file, missing := filepath.Join(dir, "file"), filepath.Join(dir, "missing")
	call := func() (string, error) {
		c := exec.Command(program)
		c.Env = []string{"BENCH_REPLAY=" + prefix, "CNI_COMMAND=ADD"}
		c.Stdin = strings.NewReader("what it reads")
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr.Bytes())
		}
		return string(out), err
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if out, err := call(); err != nil || out != "{}" {
		t.Errorf("printed %q: %v", out, err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "what it reads" {
		t.Errorf("the file has %q: %v", b, err)
	}
	if err := os.WriteFile(missing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := call(); err == nil {
		t.Errorf("a file is there that was missing, and the program printed %q and ended with 0", out)
	}
	if err := os.Remove(missing); err != nil {
		t.Fatal(err)
	}
}

// TestFloor: our chain and the programs that make its calls again take turns. Each finds what it needs as the one before has left it,
// and nobody asks EC2.
func TestFloor(t *testing.T) {
	nltest.Need(t, "ipvlan")
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	r := &report{rounds: 3}
	o := options{bin: bin, conflist: "../../conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", c: concurrencies{1}, rounds: r.rounds}
	if err := bench(t.Context(), o, r); err != nil {
		t.Fatal(err)
	}
	if r.asked > 0 {
		t.Errorf("%d times somebody asked EC2 or the metadata service", r.asked)
	}
	if floor := r.floor(); len(floor) < 1+len(replays) {
		t.Errorf("the floor is %v", floor)
	}
}

// TestNameIndex: the message that makes a veth pair gets the index, and no other does.
func TestNameIndex(t *testing.T) {
	message := func(typ, flags uint16, kind string) []byte {
		b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint16(b[4:], typ)
		binary.NativeEndian.PutUint16(b[6:], flags)
		return append(b, "\x08\x00\x01\x00"+kind...)
	}
	var r recording
	for _, m := range [][]byte{
		message(unix.RTM_GETLINK, unix.NLM_F_DUMP, "veth"),
		message(unix.RTM_NEWLINK, unix.NLM_F_CREATE, "ipvlan"),
		message(unix.RTM_NEWLINK, unix.NLM_F_CREATE, "veth"),
	} {
		r.pointers = append(r.pointers, pointer{call: len(r.calls), arg: 1, to: r.keep(m)})
		r.calls = append(r.calls, image.Call{Number: unix.SYS_WRITE, Args: [6]uintptr{2: uintptr(len(m))}})
	}
	if err := r.setIndex(263); err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for _, p := range r.pointers {
		got = append(got, binary.NativeEndian.Uint32(r.data[p.to+unix.SizeofNlMsghdr+4:]))
	}
	if fmt.Sprint(got) != "[0 0 263]" {
		t.Errorf("the messages have the indices %v", got)
	}
	if err := (&recording{}).setIndex(1); err == nil {
		t.Error("no message makes a pair, and that is no error")
	}
}
