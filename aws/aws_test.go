// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the tests that read the log set their own
	if os.Getenv(asksLimits) != "" {
		_, err := aws.New(aws.Options{}).Limits(context.Background(), "m5.large")
		fmt.Print(err)
		os.Exit(0)
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("AWS_REGION", "us-east-1")
	os.Setenv("AWS_ACCESS_KEY_ID", "test")
	os.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	os.Exit(m.Run())
}

// direct serves requests by calling the handler, without a socket. If the handler closes its connection, the request
// fails here, too.
type direct struct{ http.Handler }

func (d direct) Do(r *http.Request) (_ *http.Response, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			err = io.EOF
		default:
			panic(p)
		}
	}()
	w := httptest.NewRecorder()
	arrived := r.Clone(r.Context())
	arrived.Host = r.URL.Host
	d.ServeHTTP(w, arrived)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// client returns a client whose EC2 and metadata service are these handlers.
func client(ec2, metadata http.Handler) *aws.Client {
	mux := http.NewServeMux()
	mux.Handle("ec2.test/", ec2)
	mux.Handle("metadata.test/", metadata)
	return aws.New(aws.Options{EC2URL: "http://ec2.test", MetadataURL: "http://metadata.test", HTTP: direct{mux}})
}

// refuse answers like EC2 after a refused call.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w,
		`<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>req-1</RequestID></Response>`, code, message)
}

// answer answers like EC2 after a successful call.
func answer(w http.ResponseWriter, action, body string) {
	w.Header().Set("X-Amzn-Requestid", "req-1")
	fmt.Fprintf(w,
		`<%[1]sResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>req-1</requestId>%[2]s</%[1]sResponse>`, action, body)
}

const assigned = `<networkInterfaceId>eni-1</networkInterfaceId><assignedPrivateIpAddressesSet><item><privateIpAddress>10.0.0.9</privateIpAddress></item></assignedPrivateIpAddressesSet>`

// tree is a metadata service whose keys are fixed.
type tree map[string]string

func (m tree) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
		io.WriteString(w, "token")
		return
	}
	text, ok := m[r.URL.Path]
	switch {
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "token":
		w.WriteHeader(http.StatusUnauthorized)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	default:
		io.WriteString(w, text)
	}
}

// inBubble runs a subtest in a bubble with a clock of its own, so that a busy machine misses no deadline.
func inBubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}
