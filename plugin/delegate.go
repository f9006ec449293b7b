// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// delegates counts the programs that Delegate has started and that still run. [Main] waits for their end.
var delegates sync.WaitGroup

// Delegate executes another plugin for the request, as a runtime does (CNI specification, section 4, "Plugin
// Delegation"). It returns the result or the error of that plugin, and looks for the plugin's program in the
// directories of CNI_PATH. The program ends when ctx or this process ends. args are command-line arguments, which only
// our own programs accept.
//
// A program that closes its standard output has answered, but may still run: see the field After of [Commands]. After
// the answer, the end of ctx does not end the program, and Main waits for the program.
func (r *Request[C]) Delegate(ctx context.Context, name string, args ...string) (*types100.Result, error) {
	program, err := findProgram(name, os.Getenv("CNI_PATH"))
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	cmd := exec.CommandContext(running, program, args...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(r.stdin), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	type answer struct {
		stdout []byte
		err    error
	}
	got := make(chan answer, 1)
	delegates.Go(func() {
		defer cancel()
		// The program gets SIGKILL when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG). So keep this
		// thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		stdout, err := startAndRead(cmd)
		if err == nil && !isError(stdout) && stop() {
			got <- answer{stdout, nil}
			_ = cmd.Wait()
			return
		}
		got <- answer{stdout, cmp.Or(err, cmd.Wait())}
	})
	a := <-got
	if a.err != nil && ctx.Err() != nil { // the end of ctx has killed the program
		return nil, fmt.Errorf("%s: %w", name, ctx.Err())
	} else if a.err != nil {
		return nil, delegateError(name, a.stdout, a.err)
	}
	n := network{CNIVersion: r.cniVersion, PrevResult: a.stdout}
	return n.prevResult()
}

// startAndRead starts a program, and returns what the program prints until it closes its standard output.
func startAndRead(cmd *exec.Cmd) ([]byte, error) {
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(stdout)
}

// isError reports whether an answer is an error, or is not JSON. A killed program has an empty answer, which is not
// JSON.
func isError(stdout []byte) bool {
	var e types.Error
	return json.Unmarshal(stdout, &e) != nil || e.Code != 0
}

// CanDelegate returns an error with CodeNotAvailable if the program of another plugin is missing.
func (r *Request[C]) CanDelegate(name string) error {
	_, err := findProgram(name, os.Getenv("CNI_PATH"))
	if err != nil {
		return Errorf(CodeNotAvailable, installHint, "%w", err)
	}
	return nil
}

const installHint = "install the missing program in the directory of this plugin, from the same release"

// findProgram searches the directories in path for a program, and returns the first file that it finds.
func findProgram(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		program := filepath.Join(dir, name)
		if fi, err := os.Stat(program); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return program, nil
		}
	}
	return "", Errorf(CodeInvalid, installHint, "%s is in none of the directories of CNI_PATH, %s", name, path)
}

// delegateError returns the error that a plugin has printed, or else an error about how the plugin ended.
func delegateError(name string, stdout []byte, ended error) error {
	var e types.Error
	if json.Unmarshal(stdout, &e) != nil || e.Code == 0 {
		return Errorf(types.ErrInternal, "see the log of the container runtime", "%s: %w: %s", name, ended,
			strings.TrimSpace(string(stdout)))
	}
	return &Error{e.Code, e.Details, errors.New(e.Msg)}
}
