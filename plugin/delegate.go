// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Delegate executes another plugin for the request, as a runtime does, and returns its result
// or its error (CNI specification, section 4, "Plugin Delegation"). The program is in a directory
// of CNI_PATH. It ends when ctx ends, or when this process ends. Runtimes give a plugin no
// arguments.
func (r *Request[C]) Delegate(ctx context.Context, name string, args ...string) (*types100.Result, error) {
	program, err := find(name, os.Getenv("CNI_PATH"))
	if err != nil {
		return nil, err
	}
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.stdin), &stdout, os.Stderr
	// The signal comes when the thread ends that has started the program (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil && ctx.Err() != nil { // the end of ctx has killed it
		return nil, fmt.Errorf("%s: %w", name, ctx.Err())
	} else if err != nil {
		return nil, answered(name, stdout.Bytes(), err)
	}
	n := network{CNIVersion: r.cniVersion, PrevResult: stdout.Bytes()}
	return n.prevResult()
}

// CanDelegate fails with STATUS' code if the program of another plugin is missing.
func (r *Request[C]) CanDelegate(name string) error {
	_, err := find(name, os.Getenv("CNI_PATH"))
	if err != nil {
		return Errorf(CodeNotAvailable, install, "%w", err)
	}
	return nil
}

// install is the hint about a missing program.
const install = "install it in the directory of this plugin, from the same release"

// find finds a program in one of the directories of a path.
func find(name, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		program := filepath.Join(dir, name)
		if fi, err := os.Stat(program); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return program, nil
		}
	}
	return "", Errorf(CodeInvalid, install, "%s is in none of the directories of CNI_PATH, %s", name, path)
}

// answered is the error that a plugin has printed. If it has printed none, it is how the
// plugin ended.
func answered(name string, stdout []byte, ended error) error {
	var e types.Error
	if json.Unmarshal(stdout, &e) != nil || e.Code == 0 {
		return Errorf(types.ErrInternal, "see the log of the container runtime", "%s: %w: %s", name, ended,
			strings.TrimSpace(string(stdout)))
	}
	return &Error{e.Code, e.Details, errors.New(e.Msg)}
}
