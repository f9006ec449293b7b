// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
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

// client returns a client whose EC2 and metadata service are these handlers.
func client(ec2, metadata http.Handler) *aws.Client {
	mux := http.NewServeMux()
	mux.Handle("ec2.test/", ec2)
	mux.Handle("metadata.test/", metadata)
	return aws.New(aws.Options{EC2URL: "http://ec2.test", MetadataURL: "http://metadata.test",
		HTTP: ec2sim.Direct{Handler: mux}})
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
