// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package plugin has the code of CNI that all plugins share: it decodes commands and encodes answers.
//
// A runtime executes a plugin once per command. The command is in the environment, and the network configuration is on
// standard input (CNI specification 1.1.0, sections 2 and 3). [Main] decodes both once, calls the function for the
// command, and encodes the result or the error. So a plugin is a [Commands] value: functions that take a [Request].
// Only Main reads the command and standard input, prints the answer, and exits.
//
// Standard output gets exactly one JSON object: a result in the version that the configuration asks for, or an error.
// An error has CNI's code, the cause, and a hint for the operator. After a panic, the error has the code 999 and the
// stack. If a command does not end before its deadline, the error has the code 11, "try again later".
package plugin

//go:generate go run ../internal/codec/gen

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/stack"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/trace"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// An Attachment is CNI's key for one interface of one container.
type Attachment = types.GCAttachment

// A Request is one CNI command. STATUS and GC are about a network, and the other commands are about one attachment.
type Request[C any] struct {
	Network    string           // the network's name
	Attachment                  // container ID and interface name; zero for STATUS and GC
	NetNS      string           // path of the container's namespace; may be empty in a DEL
	Pod        Pod              // the pod of the attachment; zero outside Kubernetes
	Config     C                // the plugin's part of the configuration, validated
	Prev       *types100.Result // prevResult; nil for the first plugin of a chain, and on a DEL after a failed ADD
	Valid      []Attachment     // GC: the attachments that still exist
	Began      time.Time        // when the command began; zero if the caller does not know
	Waited     bool             // set by an ADD that has waited for EC2

	// Added lists attachments that may be missing in Valid although they exist: their ADDs have begun after this GC, or
	// have perhaps not ended yet. Added is nil if the plugin cannot know these attachments.
	Added func() ([]Attachment, error)

	cniVersion string // of the configuration
	stdin      []byte
}

// Commands has a function for each command of a plugin. Add must not be nil. A command without a function succeeds and
// does nothing.
type Commands[C any] struct {
	Add    func(context.Context, *Request[C]) (*types100.Result, error)
	Del    func(context.Context, *Request[C]) error
	Check  func(context.Context, *Request[C]) error
	GC     func(context.Context, *Request[C]) error
	Status func(context.Context, *Request[C]) error

	// Ended, if not nil, is called before the answer is printed. If err is nil, waited reports whether the command has
	// waited for EC2.
	Ended func(verb string, took time.Duration, waited bool, err *types.Error)

	// After, if not nil, is called after the answer is printed. The runtime does not wait for the end of After.
	After func()

	// Refuses means that Add and Check themselves refuse the namespace of the node, with the error NodesNS. Add and
	// Check open the node's namespace for their own work. So [Main] need not look for the node's namespace in /proc.
	Refuses bool
}

// Each deadline is earlier than the time at which a runtime ends the plugin by SIGKILL. After a SIGKILL, neither the
// runtime nor an operator learns the reason. containerd gives ADD 4 minutes (twice the kubelet's runtimeRequestTimeout)
// and DEL 1 minute. CRI-O gives DEL 1 minute and GC 30 seconds. containerd has no limit for STATUS, but holds a lock
// during the call.
const (
	addDeadline    = 100 * time.Second
	delDeadline    = 45 * time.Second
	checkDeadline  = 20 * time.Second
	gcDeadline     = 25 * time.Second
	statusDeadline = 2 * time.Second

	// grace is how long a command can still return its own error after the command's deadline. That error says for what
	// the command has waited.
	grace = time.Second
)

// Unhurried sets the deadline of every command to one hour. Tests use Unhurried if they stop a process at each of its
// system calls. Without Unhurried, a STATUS could reach its deadline, and would then report success (see status.go).
var Unhurried bool

// supportedVersions are the specification versions in which prevResult and chaining exist.
var supportedVersions = version.VersionsStartingFrom("0.3.0")

// Main answers the command in the environment and exits: with 0, or with 1 after it has printed an error. It handles no
// signal, because a kill at any point does no harm. A thread that waits for signals would cost each command a twentieth
// of its instructions.
func Main[C any](name string, c Commands[C]) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("plugin", name, "container", os.Getenv("CNI_CONTAINERID"))
	call := trace.ID()
	if call != "" {
		log = log.With("trace", call)
	}
	slog.SetDefault(log)
	if os.Getenv("CNI_COMMAND") == "" {
		fmt.Fprintf(os.Stderr, "%s\nCNI protocol versions supported: %s\n", aboutPlugin(name),
			strings.Join(supportedVersions.SupportedVersions(), ", "))
		os.Exit(0)
	}
	e := execution[C]{commands: c, cniVersion: version.Current()}
	status := 0
	if err := e.run(os.Getenv, os.Stdin, os.Stdout); err != nil {
		printError(os.Stdout, e.cniVersion, withTrace(err, call))
		status = 1
	}
	if e.commands.After != nil {
		os.Stdout.Close() // the caller sees that the answer is complete: see Delegate
		e.commands.After()
	}
	delegates.Wait()
	os.Exit(status)
}

// An execution is the one command that a process of a plugin answers.
type execution[C any] struct {
	commands   Commands[C]
	cniVersion string       // version of the configuration, and so of the answer
	result     types.Result // of an ADD
}

// run answers a call, and prints the result of an ADD.
func (e *execution[C]) run(getenv func(string) string, stdin io.Reader, stdout io.Writer) *types.Error {
	c, err := readCall(getenv, stdin)
	if err != nil {
		return err
	}
	err = dispatch(c, stdout,
		e.commandFunc(addDeadline, e.add),
		e.commandFunc(delDeadline, e.commands.Del),
		e.commandFunc(checkDeadline, e.commands.Check),
		e.commandFunc(gcDeadline, e.commands.GC),
		e.commandFunc(statusDeadline, e.commands.Status))
	if err != nil || e.result == nil {
		return err
	}
	return printResult(stdout, e.result)
}

// add executes an ADD, and converts its result to the version of the configuration.
func (e *execution[C]) add(ctx context.Context, r *Request[C]) error {
	result, err := e.commands.Add(ctx, r)
	if err != nil {
		return err
	}
	e.result, err = result.GetAsVersion(e.cniVersion)
	return err
}

// commandFunc returns the function that dispatch calls for one command. f does the work of the command: see answerCall.
func (e *execution[C]) commandFunc(
	limit time.Duration, f func(context.Context, *Request[C]) error,
) func(*call) *types.Error {
	return func(c *call) *types.Error {
		began := time.Now()
		waited, err := e.answerCall(c, limit, f)
		if e.commands.Ended != nil {
			e.commands.Ended(c.verb, time.Since(began), waited, err)
		}
		return err
	}
}

// answerCall decodes the request, and calls f with the request and a deadline. It turns a panic into an error.
func (e *execution[C]) answerCall(
	c *call, limit time.Duration, f func(context.Context, *Request[C]) error,
) (waited bool, fault *types.Error) {
	if err := c.checkVersion(); err != nil || f == nil {
		return false, err
	}
	e.cniVersion = c.network.CNIVersion
	if !e.commands.Refuses {
		if err := c.refuseNodesNS(); err != nil {
			return false, encode(c.verb, err)
		}
	}
	req, err := newRequest[C](c)
	if err != nil {
		return false, encode(c.verb, err)
	}
	if Unhurried {
		limit = time.Hour
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		stack.Deepen(0)
		done <- recoverPanic(func() error { return f(ctx, req) })
	}()
	select {
	case err = <-done:
		waited = req.Waited
	case <-graceEnd(ctx):
		err = Errorf(CodeTryAgain,
			"the node is overloaded, or another process holds a lock; the runtime tries again",
			"%s did not end within %v", c.verb, limit)
	}
	if c.verb == "STATUS" {
		err = notReadyError(err)
	}
	return waited, encode(c.verb, err)
}

// graceEnd returns a channel. The channel is closed when the time "grace" has passed after the end of ctx.
func graceEnd(ctx context.Context) <-chan struct{} {
	late := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { close(late) }) })
	return late
}

// recoverPanic calls f, and turns a panic of f into an error.
func recoverPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Errorf(types.ErrInternal, string(debug.Stack()), "panic: %v", p)
		}
	}()
	return f()
}

func aboutPlugin(name string) string {
	return fmt.Sprintf("%s %s: a CNI plugin, to be executed by a container runtime", name, release.Version())
}
