// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// asProgram is an environment variable. If it is set, the test binary runs the program and not the tests.
const asProgram = "CNI_ACCEPTANCE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// account is an AWS account with a default VPC. Changes take some time, as in EC2.
var account = func() ec2sim.Config {
	c := ec2sim.World(`
		vpc-0000000d    172.31.0.0/16 default
		subnet-0000000d 172.31.0.0/20 default public
		vpc-0000000e    10.1.0.0/16
		subnet-0000000e 10.1.0.0/24
		pcx-0000000d    vpc-0000000d vpc-0000000e`)
	c.SecurityGroups = []string{"sg-0000000d"} // no other group exists until the program creates one
	c.BootDelay, c.TerminateDelay = 200*time.Millisecond, 300*time.Millisecond
	c.AttachDelay, c.DetachDelay, c.MetadataDelay = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	return c
}()

// A world is a simulated AWS with a VPC that forwards packets. The program runs on the only host of the internet.
type world struct {
	*vpcsim.Fabric
	home string // home directory of the person who runs the program
	env  []string
	args []string
}

// newWorld starts a world. If the function change is not nil, the program calls the EC2 that change returns. The
// function boot boots each launched instance.
func newWorld(
	t *testing.T, c ec2sim.Config, change func(http.Handler) http.Handler, boot func(*vpcsim.Instance),
) *world {
	t.Helper()
	f := simtest.Fabric(t, c)
	f.OnLaunch(boot)
	check(t, f.OpenPorts(sshPort))
	var handler http.Handler = f.EC2
	if change != nil {
		handler = change(handler)
	}
	w := &world{Fabric: f, home: t.TempDir()}
	whoami := fmt.Sprintf("http://%s", vpcsim.InternetAddr)
	w.serve(t, "80", http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		fmt.Fprintln(a, from.Addr().Unmap())
	}))
	w.env = []string{asProgram + "=1", "HOME=" + w.home, "PATH=" + os.Getenv("PATH"), "AWS_REGION=us-east-1",
		"AWS_ENDPOINT_URL_EC2=" + w.serve(t, "8773", handler), "AWS_ENDPOINT_URL_STS=" +
			w.serve(t, "8774", f.EC2.STS())}
	root, program := filepath.Join(w.home, "root"), filepath.Join(w.home, "ends")
	check(t, errors.Join(os.Mkdir(root, 0o755), os.WriteFile(program, nil, 0o755)))
	w.args = []string{"-root", root, "-ends", program, "-conflist",
		"../conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", "-whoami", whoami, "-pause", "50ms"}
	return w
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) serve(t *testing.T, port string, h http.Handler) string {
	t.Helper()
	return simtest.ServeIn(t, w.Internet.NS, ":"+port, h)
}

func (w *world) keys() {
	w.env = append(w.env, "AWS_ACCESS_KEY_ID=AKIATEST", "AWS_SECRET_ACCESS_KEY=secret")
}

// A process is a running process of the program.
type process struct {
	*exec.Cmd
	mu   sync.Mutex
	text strings.Builder
	done chan struct{} // closed when the process has ended
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// start starts the program. args are added to the arguments of the world.
func (w *world) start(t *testing.T, args ...string) *process {
	t.Helper()
	return w.startTo(t, nil, args...)
}

// startTo is like start. If the argument to is not nil, the program writes its output to this file.
func (w *world) startTo(t *testing.T, to *os.File, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0], append(w.args[:len(w.args):len(w.args)], args...)...),
		done: make(chan struct{})}
	p.Env, p.Stdout, p.Stderr = w.env, p, p
	if to != nil {
		p.Stdout, p.Stderr = to, to
	}
	check(t, w.Internet.Do(p.Start))
	go func() {
		_ = p.Wait()
		close(p.done)
	}()
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

// end waits until the program has exited, and returns its exit status and output.
func (p *process) end(t *testing.T) (status int, printed string) {
	t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode(), p.printed()
	case <-time.After(time.Hour):
		t.Fatalf("it has not ended:\n%s", p.printed())
		return 0, ""
	}
}

func (w *world) run(t *testing.T, args ...string) (status int, printed string) {
	t.Helper()
	return w.start(t, args...).end(t)
}

func (p *process) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for !holds() {
		select {
		case <-p.done:
			t.Fatalf("%s: it has ended before:\n%s", what, p.printed())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// called returns a function that reports whether EC2 has got a call of the action.
func (w *world) called(action string) func() bool {
	return func() bool {
		return slices.ContainsFunc(w.EC2.Calls(), func(c ec2sim.Call) bool { return c.Action == action })
	}
}

// awaited reports whether the program waits for its instances: it describes them by their IDs.
func (w *world) awaited() bool {
	return slices.ContainsFunc(w.EC2.Calls(), func(c ec2sim.Call) bool {
		return c.Action == "DescribeInstances" && c.Params["InstanceId.1"] != ""
	})
}

func (w *world) remains() []string {
	all := append(w.EC2.KeyPairs(), w.EC2.SecurityGroups()...)
	for _, i := range w.EC2.Instances() {
		all = append(all, i.ID)
	}
	for _, e := range w.EC2.ENIs() {
		all = append(all, e.ID)
	}
	return all
}

func (w *world) nothingRemains(t *testing.T) {
	t.Helper()
	if left := w.remains(); len(left) > 0 {
		t.Errorf("there remain %v", left)
	}
	check(t, w.Err())
}

func metadata(i *vpcsim.Instance, path string) (string, error) {
	ask := func(method, path, header, value string) (string, error) {
		q := httptest.NewRequest(method, path, nil)
		q.Header.Set(header, value)
		a := httptest.NewRecorder()
		i.Metadata().ServeHTTP(a, q)
		if a.Code != http.StatusOK {
			return "", fmt.Errorf("%s %s: %d", method, path, a.Code)
		}
		b, err := io.ReadAll(a.Body)
		return string(b), err
	}
	token, err := ask("PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60")
	if err != nil {
		return "", err
	}
	return ask("GET", path, "X-aws-ec2-metadata-token", token)
}

// background is the context of commands that end with their instance.
var background = context.Background()
