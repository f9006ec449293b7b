// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"io"
	"net/http"
)

// whole sends a request's body from memory, together with its headers. If net/http reads the SDK's own reader late, the
// reader returns io.EOF, but net/http needs nil (smithy-go, safeWriteToReadCloser.WriteTo). A late read can happen if
// the endpoint is near and the node is busy: EC2 then answers before the read. Because of io.EOF, net/http treats the
// request as failed and closes the connection, and the rest of the answer is lost.
type whole struct{ HTTPClient }

func (w whole) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return w.HTTPClient.Do(r)
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	sent := *r
	sent.Body = io.NopCloser(bytes.NewReader(b))
	return w.HTTPClient.Do(&sent)
}
