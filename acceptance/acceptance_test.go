// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/iam"
)

// TestRefusals checks that the program creates nothing in EC2 without credentials, or without -yes.
func TestRefusals(t *testing.T) {
	w := newWorld(t, account, nil, nil)
	refuse := func(want string, args ...string) string {
		t.Helper()
		status, printed := w.run(t, args...)
		if status != exitMisuse || !strings.Contains(printed, want) {
			t.Errorf("%q: %d, %s, want %d and %q", args, status, printed, exitMisuse, want)
		}
		return printed
	}
	refuse("there are no AWS credentials: set AWS_PROFILE", "-yes")
	refuse("there are no AWS credentials", "-clean")
	if calls := w.EC2.Calls(); len(calls) > 0 {
		t.Errorf("calls without credentials: %v", calls)
	}

	// The credentials are in a profile, as the AWS CLI writes it.
	dir := filepath.Join(w.home, ".aws")
	check(t, errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "credentials"),
		[]byte("[mine]\naws_access_key_id = AKIATEST\naws_secret_access_key = secret\n"), 0o600)))
	w.env = append(w.env, "AWS_PROFILE=mine")
	printed := refuse("nothing was made. To make these objects, use -yes")
	for _, want := range []string{"as arn:aws:iam::123456789012:user/person",
		"us-east-1, us-east-1a, vpc-0000000d (172.31.0.0/16), subnet-0000000d (172.31.0.0/20)",
		"2 x t3.small of ami-00000000000000002 (debian-13-amd64-20260601-1100)", "SSH from 203.0.113.1/32",
		"with a public address and 8 GB each",
		"about $0.013 for 15m0s, an estimate",
		"at most about $0.21, if the instances are busy until they end by themselves"} {
		if !strings.Contains(printed, want) {
			t.Errorf("the plan has no %q:\n%s", want, printed)
		}
	}
	refuse("use -type or -subnet", "-yes", "-type", "t3.enormous")
	refuse("does not exist", "-yes", "-subnet", "subnet-0000000f")
	refuse("want an IPv4 block", "-yes", "-from", "everywhere")
	refuse("-run is only for -clean", "-yes", "-run", "mine")
	refuse("want only flags", "-yes", "please")
	refuse("run make test-ec2, which makes the files", "-yes", "-conflist", "nowhere")
	for _, c := range w.EC2.Calls() {
		if api.Changes(c.Action) {
			t.Errorf("without -yes: %s", c)
		}
	}
	w.nothingRemains(t)
}

// TestDenied checks that the program names the permission that it lacks, and deletes the objects that it has made.
func TestDenied(t *testing.T) {
	c := account
	c.Denied = []string{"RunInstances"}
	w := newWorld(t, c, nil, nil)
	w.keys()
	status, printed := w.run(t, "-yes")
	if status != exitFailed || !strings.Contains(printed, "launch the instances: ") ||
		!strings.Contains(printed, "ARGS=-policy") || strings.Contains(printed, "cost   about") {
		t.Errorf("%d: %s", status, printed)
	}
	w.nothingRemains(t)
}

// reachable returns a function that starts an SSH server on an instance. The server executes no commands.
func reachable(t *testing.T) func(*vpcsim.Instance) {
	return func(i *vpcsim.Instance) {
		l, err := daemon{Instance: i}.serve()
		if err != nil {
			t.Errorf("%s does not boot: %v", i.Name, err)
			return
		}
		t.Cleanup(func() { l.Close() })
	}
}

// TestCompare compares a simulated EC2, which stands for the real one, with the simulator in the program. The program
// reads metadata through SSH. Only the instances differ: those of the simulator in the program have neither tags nor a
// key pair.
func TestCompare(t *testing.T) {
	w := newWorld(t, account, nil, reachable(t))
	w.keys()
	status, printed := w.run(t, "-yes", "-only", "compare")
	differ := regexp.MustCompile(`(?m)^ *(kind|value|FAIL) +Describe.*`).FindAllString(printed, -1)
	others := slices.DeleteFunc(differ, func(line string) bool {
		return regexp.MustCompile(`kind .*DescribeInstances: .*\.(clientToken|keyName|tagSet\b)`).MatchString(line)
	})
	if status != 0 || !strings.Contains(printed, " differ, and 0 of these fail the test") || len(others) > 0 ||
		!strings.Contains(printed, "all checks passed") {
		t.Errorf("%d: %q: %s", status, others, printed)
	}
	if !strings.Contains(printed, "deleted: EC2 shows nothing with the tag any more") ||
		!strings.Contains(printed, "cost   about $") {
		t.Errorf("the end: %s", printed)
	}
	w.nothingRemains(t)
	w.policyFits(t)
}

// policyFits checks that the printed policy allows exactly the calls of the program.
func (w *world) policyFits(t *testing.T) {
	t.Helper()
	_, printed := w.run(t, "-policy")
	var p iam.Policy
	check(t, json.Unmarshal([]byte(printed), &p))
	// The program never calls CreateTags. But it creates objects with tags, which needs this permission.
	allowed, called := map[string]bool{}, map[string]bool{"CreateTags": true}
	for _, s := range p.Statement {
		for _, a := range s.Action {
			allowed[strings.TrimPrefix(a, "ec2:")] = true
		}
	}
	for _, c := range w.EC2.Calls() {
		called[c.Action] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(called)), slices.Sorted(maps.Keys(allowed))); diff != "" {
		t.Errorf("the policy (-called +allowed):\n%s", diff)
	}
}

// TestComparePlanted changes answers of EC2. The comparison must fail, and the program must delete all its objects.
func TestComparePlanted(t *testing.T) {
	plant := func(ec2 http.Handler) http.Handler {
		return http.HandlerFunc(func(a http.ResponseWriter, q *http.Request) {
			r := httptest.NewRecorder()
			ec2.ServeHTTP(r, q)
			body := strings.ReplaceAll(r.Body.String(), "<Code>PrivateIpAddressLimitExceeded<",
				"<Code>AddressLimitExceeded<")
			body = strings.ReplaceAll(body, "<sourceDestCheck>",
				"<operator><managed>false</managed></operator><sourceDestCheck>")
			maps.Copy(a.Header(), r.Header())
			a.Header().Del("Content-Length")
			a.WriteHeader(r.Code)
			_, _ = io.WriteString(a, body)
		})
	}
	w := newWorld(t, account, plant, reachable(t))
	w.keys()
	status, printed := w.run(t, "-yes", "-only", "compare", "-instance-profile", "nodes")
	// The two differences are the error code, and its meaning for the suite.
	if status != exitFailed || !strings.Contains(printed, "and 2 of these fail the test") {
		t.Errorf("%d: %s", status, printed)
	}
	for _, want := range []string{"FAIL   AssignPrivateIpAddresses: Errors.Error.Code",
		"kind   DescribeNetworkInterfaces: networkInterfaceSet.item.operator.managed"} {
		if !strings.Contains(printed, want) {
			t.Errorf("no %q in the table:\n%s", want, printed)
		}
	}
	launched := func(c ec2sim.Call) bool {
		return c.Action == "RunInstances" && c.Params["IamInstanceProfile.Name"] == "nodes"
	}
	if !slices.ContainsFunc(w.EC2.Calls(), launched) {
		t.Error("no launch with the instance profile")
	}
	w.nothingRemains(t)
}

// TestInterrupted sends a signal to the program at several points. Each time, the program must delete all its objects.
func TestInterrupted(t *testing.T) {
	const forever = time.Hour
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		delay  string              // the action to which EC2 sends no answer
		slow   bool                // if true, the instances do not reach the state "running"
		dumb   bool                // if true, SSH does not answer
		when   func(w *world) bool // the condition for the signal; nil: EC2 gets a call of the action in delay
	}{
		{"the answer of the first creation is lost", syscall.SIGINT, "ImportKeyPair", false, false, nil},
		{"the answer of the group's creation is lost", syscall.SIGTERM, "CreateSecurityGroup", false, false, nil},
		{"the answer of the launch is lost", syscall.SIGHUP, "RunInstances", false, false, nil},
		{"the instances are pending", syscall.SIGINT, "", true, false, (*world).awaited},
		{"SSH does not answer yet", syscall.SIGTERM, "", false, true, (*world).awaited},
		{"an ENI is being attached", syscall.SIGINT, "AttachNetworkInterface", false, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := account
			if tt.slow {
				c.BootDelay = forever
			}
			boot := reachable(t)
			if tt.dumb {
				boot = func(*vpcsim.Instance) {}
			}
			w := newWorld(t, c, nil, boot)
			w.keys()
			when := w.called(tt.delay)
			if tt.when != nil {
				when = func() bool { return tt.when(w) }
			} else {
				w.EC2.Delay(tt.delay, forever)
			}
			p := w.start(t, "-yes", "-only", "compare")
			p.await(t, tt.name, when)
			check(t, p.Process.Signal(tt.signal))
			status, printed := p.end(t)
			if status != exitFailed || !strings.Contains(printed, "interrupted") ||
				!strings.Contains(printed, "deleted: EC2 shows nothing") {
				t.Errorf("%d: %s", status, printed)
			}
			w.nothingRemains(t)
		})
	}
}

// TestShownLate interrupts a run while EC2 does not yet show the run's objects. The program must still delete these
// objects.
func TestShownLate(t *testing.T) {
	var hide, hidden atomic.Int32
	late := func(ec2 http.Handler) http.Handler {
		return http.HandlerFunc(func(a http.ResponseWriter, q *http.Request) {
			sent, err := io.ReadAll(q.Body)
			if err != nil {
				http.Error(a, err.Error(), http.StatusInternalServerError)
				return
			}
			q.Body = io.NopCloser(bytes.NewReader(sent))
			if strings.Contains(string(sent), "Action=Describe") && strings.Contains(string(sent), tagRun) &&
				hide.Load() > 0 {
				sent = bytes.Replace(sent, []byte(tagRun), []byte("nothing-has-this"), 1)
				q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
				hide.Add(-1)
				hidden.Add(1)
			}
			ec2.ServeHTTP(a, q)
		})
	}
	w := newWorld(t, account, late, func(*vpcsim.Instance) {}) // SSH does not answer
	w.keys()
	p := w.start(t, "-yes")
	p.await(t, "the program waits for the instances", w.awaited)
	const describes = 4 // number of describe calls in one look
	hide.Store(4 * defaultLooks * describes)
	check(t, p.Process.Signal(syscall.SIGINT))
	status, printed := p.end(t)
	if status != exitFailed || hidden.Load() < 2*defaultLooks*describes {
		t.Errorf("%d, after %d descriptions without the truth: %s", status, hidden.Load(), printed)
	}
	w.nothingRemains(t)
}

// TestOutputUnread interrupts a run after its output has lost its reader. For example, the same signal has ended
// tee(1).
func TestOutputUnread(t *testing.T) {
	w := newWorld(t, account, nil, func(*vpcsim.Instance) {})
	w.keys()
	r, out, err := os.Pipe()
	check(t, err)
	p := w.startTo(t, out, "-yes")
	check(t, out.Close())
	p.await(t, "the program waits for the instances", w.awaited)
	check(t, r.Close())
	check(t, p.Process.Signal(syscall.SIGINT))
	if status, _ := p.end(t); status != exitFailed {
		t.Errorf("it ends by %v", p.ProcessState)
	}
	w.nothingRemains(t)
}

// TestKilled kills a run. A later -clean names and deletes the objects that the run has left, and no other objects.
func TestKilled(t *testing.T) {
	w := newWorld(t, account, nil, reachable(t))
	w.keys()
	foreign := map[string]string{"SubnetId": "subnet-0000000d"}
	check(t, w.EC2.Operate("CreateNetworkInterface", foreign))
	before := w.remains()
	w.EC2.Delay("AttachNetworkInterface", time.Hour)
	p := w.start(t, "-yes", "-only", "compare")
	p.await(t, "attach", w.called("AttachNetworkInterface"))
	check(t, p.Process.Kill())
	p.end(t)
	left := w.remains()
	if len(left) != len(before)+7 { // a key pair, a security group, two instances with their boot ENIs, and the new ENI
		t.Fatalf("a killed run has left %v", left)
	}
	if status, printed := w.run(t, "-clean", "-yes", "-run", "another"); status != 0 || len(w.remains()) != len(left) {
		t.Errorf("of another run: %d %s: there remain %v", status, printed, w.remains())
	}
	for _, args := range [][]string{{"-clean"}, {}} { // -clean without -yes, and the plan of the next run
		status, printed := w.run(t, args...)
		if status != exitMisuse || len(w.remains()) != len(left) {
			t.Errorf("%q without -yes: %d %s: there remain %v", args, status, printed, w.remains())
		}
		for _, id := range left {
			if slices.Contains(before, id) == strings.Contains(printed, id) {
				t.Errorf("%q: %s, of those before: %v: %s", args, id, slices.Contains(before, id), printed)
			}
		}
	}
	status, printed := w.run(t, "-clean", "-yes")
	if status != 0 {
		t.Errorf("%d: %s", status, printed)
	}
	for _, id := range left {
		if slices.Contains(before, id) == strings.Contains(printed, id+"\n") {
			t.Errorf("%s, of those before: %v: %s", id, slices.Contains(before, id), printed)
		}
	}
	if diff := cmp.Diff(before, w.remains()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	check(t, w.Err())
}

// TestCleaning checks that the program deletes its objects after an error and after a panic.
func TestCleaning(t *testing.T) {
	failed, dirty := errors.New("failed"), errors.New("dirty")
	if err := runAndClean(func() error { return failed }, func() error { return dirty }); !errors.Is(err, failed) ||
		!errors.Is(err, dirty) {
		t.Error(err)
	}
	cleaned := false
	defer func() {
		if r := recover(); r != "a mistake" || !cleaned {
			t.Errorf("panic: %v, cleaned: %v", r, cleaned)
		}
	}()
	_ = runAndClean(func() error { panic("a mistake") }, func() error { cleaned = true; return nil })
}

// TestCost checks that a run of one second costs as much as a run of one minute. If the program does not know the
// price, it must say so.
func TestCost(t *testing.T) {
	small := prices["t3.small"]
	second, minute, hour := estimate(small, 8, time.Second), estimate(small, 8, time.Minute), estimate(small,
		8, time.Hour)
	if second != minute || hour < 0.053 || hour > 0.054 {
		t.Errorf("a second %f, a minute %f, an hour %f", second, minute, hour)
	}
	unknown := plan{kind: "m5.metal"}
	for _, text := range []string{unknown.cost(time.Hour), unknown.mostCost()} {
		if !strings.Contains(text, "m5.metal") || !strings.Contains(text, "not known here") {
			t.Error(text)
		}
	}
}

// TestUsable checks that checkImage refuses some images. An instance of such an image would leave a volume behind, or
// could not run the programs.
func TestUsable(t *testing.T) {
	volume := func(ends *bool) types.Image {
		return types.Image{ImageId: new("ami-1"), Architecture: types.ArchitectureValuesX8664,
			BlockDeviceMappings: []types.BlockDeviceMapping{{DeviceName: new("/dev/sda"),
				Ebs: &types.EbsBlockDevice{DeleteOnTermination: ends}}}}
	}
	arm := volume(new(true))
	arm.Architecture = types.ArchitectureValuesArm64
	for _, tt := range []struct {
		image types.Image
		want  string // part of the error; empty: the image is usable
	}{
		{volume(new(true)), ""},
		{volume(new(false)), "outlives its instance"},
		{volume(nil), "outlives its instance"},
		{arm, "is for arm64"},
	} {
		if err := checkImage(tt.image); (err == nil) != (tt.want == "") || err != nil &&
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}

func TestHelp(t *testing.T) {
	w := newWorld(t, account, nil, nil)
	status, printed := w.run(t, "-help")
	if status != 0 || !strings.Contains(printed, "-instance-profile name") || strings.Contains(printed, "acceptance:") {
		t.Errorf("%d: %s", status, printed)
	}
}
