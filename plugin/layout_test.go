// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
)

func TestNetworkRead(t *testing.T) { codectest.Reads(t, (*network).Describe) }
func TestResultRead(t *testing.T)  { codectest.Reads(t, describeResult) }

// A said has a description and struct tags. If the codec cannot read a text by the description, encoding/json reads it
// by the tags.
type said struct {
	Text string `json:"text"`
	By   string `json:"by"`
}

func (s *said) Describe(c *codec.Codec) {
	s.By = "codec"
	c.Object(func() { codec.Field(c, "text", &s.Text, codec.Text) })
}

func TestUnmarshal(t *testing.T) {
	for text, want := range map[string]said{
		`{"text":"a"}`:                 {"a", "codec"},
		`{"TEXT":"b","by":"tags"}`:     {"b", "tags"},
		`{"text":"c","text":null}`:     {"c", ""},
		`{"text":"d","also":["text"]}`: {"d", "codec"},
	} {
		var s said
		if err := unmarshal([]byte(text), &s); err != nil || s != want {
			t.Errorf("%s: got %+v, %v; want %+v", text, s, err, want)
		}
	}
}

func randomResult() *types100.Result {
	r := &types100.Result{}
	codectest.Random(reflect.ValueOf(r).Elem())
	r.CNIVersion = "1.1.0"
	return r
}

// TestResultWritten: a result is written as the CNI library writes it, except for escapes such as \u003c.
func TestResultWritten(t *testing.T) {
	for range 500 {
		r := randomResult()
		if _, err := codec.Write([]byte{}, func(c *codec.Codec) { describeResult(r, c) }); err != nil {
			t.Fatal(err)
		}
		got, err := formatResult(r)
		if err != nil {
			t.Fatal(err)
		}
		var printed, want, escaped bytes.Buffer
		if err := errors.Join(r.PrintTo(&printed), json.Compact(&want, printed.Bytes())); err != nil {
			t.Fatal(err)
		}
		json.HTMLEscape(&escaped, got)
		if diff := cmp.Diff(want.String(), escaped.String()); diff != "" {
			t.Fatalf("-library +ours:\n%s", diff)
		}
	}
}

// TestResultWrong: for a result that the CNI library cannot write, the error is the library's.
func TestResultWrong(t *testing.T) {
	r := &types100.Result{IPs: []*types100.IPConfig{{Gateway: []byte{1, 2, 3}}}}
	_, err := formatResult(r)
	if want := r.PrintTo(&bytes.Buffer{}); err == nil || err.Error() != want.Error() {
		t.Errorf("got %v, want %v", err, want)
	}
}

// TestResultOdd: parseResult leaves results that are wrong or unusual to the CNI library. prevResult refuses a result
// of a later version than the configuration's.
func TestResultOdd(t *testing.T) {
	for _, text := range []string{
		`{}`, `{"cniVersion":"0.4.0"}`, `{"cniVersion":"1.2.0"}`,
		`{"cniVersion":"1.1.0","ips":[{"address":""}]}`,
		`{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.300/8"}]}`,
		`{"cniVersion":"1.1.0","ips":[{"gateway":"10.0.0.300"}]}`,
		`{"cniVersion":"1.1.0","interfaces":[null]}`,
		`{"cniVersion":"1.1.0","Routes":[]}`,
	} {
		if r, ok := parseResult([]byte(text)); ok {
			t.Errorf("%s: read as %+v", text, r)
		}
	}
	n := network{CNIVersion: "0.4.0", PrevResult: json.RawMessage(`{"cniVersion":"1.1.0"}`)}
	if r, err := n.prevResult(); err == nil {
		t.Errorf("a result of a later version than the configuration's: read as %+v", r)
	}
}

// TestOrdinaryCall: the codec reads the configurations of the examples without encoding/json. It reads them as runtimes
// write them, and with additional spaces.
func TestOrdinaryCall(t *testing.T) {
	files, err := filepath.Glob("../conflist-examples/*.conflist")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		list, err := libcni.ConfListFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Plugins {
			conf, err := libcni.InjectConf(p, map[string]any{"name": list.Name, "cniVersion": list.CNIVersion,
				"prevResult": randomResult()})
			if err != nil {
				t.Fatal(err)
			}
			var spaced bytes.Buffer
			if err := json.Indent(&spaced, conf.Bytes, "", "\t"); err != nil {
				t.Fatal(err)
			}
			c, n := call{stdin: spaced.Bytes()}, network{}
			if err := c.readNetwork(); err != nil {
				t.Fatal(err)
			}
			if err := codec.ReadExactly(c.stdin, n.Describe); err != nil || n.Name != list.Name ||
				n.CNIVersion != list.CNIVersion {
				t.Errorf("%s: read %+v, %v", c.stdin, n, err)
			}
			if _, ok := parseResult(n.PrevResult); !ok {
				t.Errorf("%s: not read", n.PrevResult)
			}
		}
	}
}

func FuzzNetwork(f *testing.F) {
	codectest.Fuzz(f, (*network).Describe,
		`{"cniVersion":"1.1.0","name":"n","type":"echo","address":"10.0.0.7/20","prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.9.9.9/16"}]}}`,
		`{"CNIVersion":"1.1.0","name":"n","name":null,"prevResult":null,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]}`)
}

func FuzzResult(f *testing.F) {
	seeds := []string{`{"ips":[{"address":"10.9.9.9/16","Gateway":"10.9.9.1","interface":null,"gateway":""}],"routes":[{"dst":"::/0","gw":null}]}`}
	for range 20 {
		b, err := json.Marshal(randomResult())
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, string(b))
	}
	codectest.Fuzz(f, describeResult, seeds...)
}
