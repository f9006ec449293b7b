// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"io"
	"net/http"
)

// A wholeBodyClient copies the body of a request into memory before it makes the request, because the SDK's reader of
// the body has a fault. If EC2's answer arrives before net/http has read the whole body, net/http reads the rest by the
// reader's method WriteTo. At the end, this method returns io.EOF instead of nil (smithy-go,
// safeWriteToReadCloser.WriteTo). Then net/http closes the connection, and the rest of the answer is lost.
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
