// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"io"
	"net/http"
)

// A wholeBodyClient copies the body of a request into memory before it makes the request. The copy avoids a fault in
// the reader that the SDK makes for the body. If the endpoint answers fast and the node is busy, EC2's answer may
// arrive before net/http has read the whole request body. When net/http then reads the rest of the body, the method
// WriteTo of the SDK's reader must return nil at the end. But this method returns io.EOF (smithy-go,
// safeWriteToReadCloser.WriteTo). So net/http treats the request as failed and closes the connection, and the rest of
// the answer is lost.
type wholeBodyClient struct{ HTTPClient }

func (w wholeBodyClient) Do(r *http.Request) (*http.Response, error) {
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
