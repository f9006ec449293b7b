// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"io"
	"net/http"
)

// whole sends a request's body from memory, together with its headers. The SDK's own reader returns io.EOF to a late
// read, where net/http needs nil (smithy-go, safeWriteToReadCloser.WriteTo). EC2 may answer before that read, if the
// endpoint is near and the node is busy. Then net/http treats the request as failed and closes the connection. The rest
// of the answer is then lost.
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
