// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
)

// These two errors have the same texts as in the original tool, because scripts may look for these texts.
var (
	//lint:ignore ST1005 the text of the original tool
	errRoot = errors.New("This command must be run as root")
	//lint:ignore ST1005 the text of the original tool
	errNotEC2 = errors.New("This command must be run from a running ec2 instance")
)

// A hinted error has a hint: what an operator can do about the error.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// Count returns a number with a noun, such as "1 error" or "2 errors". The argument "thing" is the noun in the
// singular.
func Count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}

// Hint adds a hint to an error: what an operator can do about the error.
func Hint(err error, hint string) error { return hinted{err, hint} }

// Log makes slog write its messages to standard error, in the format of Report.
func Log() { slog.SetDefault(slog.New(messageHandler{t: newTerminal(os.Stderr)})) }

// Report writes an error for people, and returns the exit status for this error. It writes each line of the error's
// text as a separate message.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, aws.ErrNoMetadata) {
		err = fmt.Errorf("%w: %w", errNotEC2, err)
	}
	for line := range strings.Lines(err.Error()) {
		writeLine(w, "error: "+strings.TrimRight(line, "\n"))
	}
	if hint := hintOf(err); hint != "" {
		writeLine(w, "hint: "+hint)
	}
	if exit := exitCoder(err); exit != nil {
		return exit.ExitCode()
	}
	return 1
}

// exitCoder returns the first error in the tree of err that sets the exit status of the tool, or nil. It ignores an
// exec.ExitError, which has the exit status of another program. An exec.ExitError has no method Unwrap, so the
// interface ofTool requires this method.
func exitCoder(err error) urfave.ExitCoder {
	type ofTool interface {
		urfave.ExitCoder
		Unwrap() error
	}
	exit, _ := errors.AsType[ofTool](err)
	return exit
}

func hintOf(err error) string {
	if h, ok := errors.AsType[hinted](err); ok {
		return h.hint
	}
	if exitCoder(err) != nil {
		return "see " + Name + " --help"
	}
	return cmp.Or(Unreadable(err), ipam.Hint(err))
}

// writeLine writes a line to w. It escapes characters that are not printable, because messages quote texts of pods and
// of other programs.
func writeLine(w io.Writer, text string) { fmt.Fprintf(w, "%s: %s\n", Name, excerpt.Lines(text)) }

// A messageHandler is a slog.Handler that writes messages in the format of Report, without the time.
type messageHandler struct {
	t     *terminal
	attrs []slog.Attr
}

// Enabled reports whether a message has the level Info or more.
func (m messageHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

// WithAttrs returns a handler that adds the attributes.
func (m messageHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return messageHandler{m.t, slices.Concat(m.attrs, attrs)}
}

// WithGroup ignores the group, because the tool uses no groups.
func (m messageHandler) WithGroup(string) slog.Handler { return m }

// Handle writes a record: "warning: text key=value".
func (m messageHandler) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(m.attrs...)
	var attrs bytes.Buffer
	text := slog.NewTextHandler(&attrs, &slog.HandlerOptions{ReplaceAttr: attrsAlone})
	if err := text.Handle(ctx, r); err != nil {
		return err
	}
	level := ""
	if r.Level >= slog.LevelWarn {
		level = "warning: "
	}
	writeLine(m.t, strings.TrimSpace(level+r.Message+" "+attrs.String()))
	return nil
}

// attrsAlone drops the time, the level and the message of a record, and leaves only its attributes.
func attrsAlone(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && slices.Contains([]string{slog.TimeKey, slog.LevelKey, slog.MessageKey}, a.Key) {
		return slog.Attr{}
	}
	return a
}
