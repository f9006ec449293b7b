// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// An answerText has the first value of each element in an answer of EC2.
type answerText map[string]string

func (a answerText) get(t *testing.T, name string) string {
	t.Helper()
	if a[name] == "" {
		t.Fatalf("EC2 tells no %s: %v", name, a)
	}
	return a[name]
}

// call makes an EC2 call from an instance. Parameters are pairs of name and value.
func call(t *testing.T, i *vpcsim.Instance, action string, parameters ...string) answerText {
	t.Helper()
	form := url.Values{"Action": {action}}
	for p := range slices.Chunk(parameters, 2) {
		form.Set(p[0], p[1])
	}
	body := fetch(t, i, "POST", endpoint(i)+"/?"+form.Encode(), "", "")
	a := answerText{}
	var element string
	for d := xml.NewDecoder(strings.NewReader(body)); ; {
		switch token, err := d.Token(); x := token.(type) {
		case xml.StartElement:
			element = x.Name.Local
		case xml.CharData:
			if text := strings.TrimSpace(string(x)); text != "" && a[element] == "" {
				a[element] = text
			}
		case nil:
			if err != io.EOF {
				t.Fatal(err)
			}
			return a
		}
	}
}

func endpoint(i *vpcsim.Instance) string {
	for _, e := range i.Env() {
		if v, ok := strings.CutPrefix(e, "AWS_ENDPOINT_URL_EC2="); ok {
			return v
		}
	}
	return ""
}

func fetch(t *testing.T, i *vpcsim.Instance, method, url, header, value string) string {
	t.Helper()
	var body []byte
	err := i.Do(func() error {
		r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			return err
		}
		if header != "" {
			r.Header.Set(header, value)
		}
		// http.Client would dial in a goroutine of its own, outside the namespace.
		c, err := net.Dial("tcp", net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), "80")))
		if err != nil {
			return err
		}
		dialled := func(context.Context, string, string) (net.Conn, error) { return c, nil }
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialled}}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err = io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", answer.Status, body)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
