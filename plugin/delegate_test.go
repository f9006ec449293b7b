// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// relay is a plugin whose ADD delegates to echo.
func relay(ctx context.Context, r *plugin.Request[config]) (*types100.Result, error) {
	return r.Delegate(ctx, "echo")
}

// orphan starts the program relay, and waits until its delegate has written the file pid. Then it kills relay, and
// waits until the delegate has ended.
func orphan(ts *testscript.TestScript, _ bool, _ []string) {
	program, err := exec.LookPath("relay")
	ts.Check(err)
	cmd := exec.Command(program)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "PATH"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Stdin = strings.NewReader(ts.ReadFile("1.1.0.json"))
	ts.Check(cmd.Start())
	pid := 0
	ts.Check(within(func() bool {
		b, err := os.ReadFile(ts.MkAbs("pid"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	}))
	ts.Check(cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	ts.Check(within(func() bool { return ended(pid) }))
}

// TestDelegateOverdue: the plugin kills its delegate at the time limit. The error says so, and has the code after which
// the runtime tries again.
func TestDelegateOverdue(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CNI_PATH", dir)
	if err := os.WriteFile(filepath.Join(dir, "echo"), []byte("#!/bin/sh\n: > $CNI_PATH/started\nexec sleep 600\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() {
		defer cancel()
		started <- within(func() bool { _, err := os.Stat(filepath.Join(dir, "started")); return err == nil })
	}()
	_, err := relay(ctx, &plugin.Request[config]{})
	if e := <-started; e != nil {
		t.Fatal(e)
	}
	if coded, is := errors.AsType[*plugin.Error](err); is || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, with the code of %+v", err, coded)
	}
}

// TestDelegateAnswersFirst: a delegate has answered when it closes its standard output. If the plugin's command ends
// after that, the delegate must still run.
func TestDelegateAnswersFirst(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CNI_PATH", dir)
	const script = `#!/bin/sh
echo '{"ip4": {"ip": "10.0.0.1/24"}}'
exec >&-
until [ -e $CNI_PATH/go ]; do sleep 0.01; done
: >$CNI_PATH/done
`
	if err := os.WriteFile(filepath.Join(dir, "echo"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result, err := relay(ctx, &plugin.Request[config]{})
	cancel()
	if err != nil || len(result.IPs) != 1 {
		t.Fatal(result, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := within(func() bool { _, err := os.Stat(filepath.Join(dir, "done")); return err == nil }); err != nil {
		t.Error(err)
	}
}

// ended reports whether a process has ended, even if its parent has not yet waited for it.
func ended(pid int) bool {
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || strings.Contains(string(stat), ") Z ")
}

// within waits until so returns true. Its limit is half of the time that the delegate would run.
func within(so func() bool) error {
	for deadline := time.Now().Add(5 * time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("it is not so after 5 minutes")
		}
	}
	return nil
}
