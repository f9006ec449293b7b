// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
)

// maxAnswer is the most that is read of an answer, in bytes. A full page of ENIs, each
// with fifty addresses and their names, is about 16 MiB.
const maxAnswer = 64 << 20

// A genuine client passes on the answers of EC2, and fails on what only looks like one.
// The SDK takes a body that is empty, or a web page that happens to be XML, for an answer
// without content: for "no such ENI", or, where there is nothing to tell, for "done".
// Captive portals and proxies answer so, with status 200.
//
// An answer to an action is a complete XML document of one element, named after the
// action, in which nothing says that the request was not carried out (EC2 API reference,
// the response elements of DeleteNetworkInterface and others: "return").
type genuine struct{ HTTPClient }

func (g genuine) Do(r *http.Request) (*http.Response, error) {
	resp, err := g.HTTPClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var read bytes.Buffer
	if _, err := read.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1)); err != nil {
		return nil, err
	}
	body := read.Bytes()
	if len(body) > maxAnswer {
		return nil, impostor{fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)}
	}
	if resp.StatusCode/100 == 2 {
		if err := answers(body, awsmiddleware.GetOperationName(r.Context())); err != nil {
			return nil, impostor{fmt.Errorf("%w: %.80q", err, body)}
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// An impostor is an error about an answer that cannot be EC2's.
type impostor struct{ error }

func (i impostor) Unwrap() error { return i.error }

// answers says why the document is no answer to the action.
func answers(document []byte, action string) error {
	d := xml.NewDecoder(bytes.NewReader(document))
	roots, depth, inReturn := 0, 0, false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && roots == 1 {
			return nil // the decoder has seen to it that all elements are closed
		}
		if err != nil {
			return fmt.Errorf("not an answer of EC2: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
				if t.Name.Local != action+"Response" || roots > 1 {
					return fmt.Errorf("not an answer of EC2 to %s", action)
				}
			}
			depth++
			inReturn = depth == 2 && t.Name.Local == "return"
		case xml.EndElement:
			depth--
			inReturn = false
		case xml.CharData:
			if inReturn && string(bytes.TrimSpace(t)) != "true" {
				return fmt.Errorf("EC2 has not done it: return is %.80q", t)
			}
		}
	}
}
